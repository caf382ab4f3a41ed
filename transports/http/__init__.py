"""The HTTP side: routes, requests in OpenAI's shapes, and server-sent events."""
