"""Plain ASGI pieces: the request body, the reply, the hang-up watch, the layers around the application."""
