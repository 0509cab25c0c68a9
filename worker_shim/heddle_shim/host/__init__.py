"""A machine with GPUs: engines are launched, drained and launched again with other MP degrees."""
