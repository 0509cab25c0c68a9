"""Predicts lengths and makes plans, beside the gateway."""
