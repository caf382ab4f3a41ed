"""How clients reach the engine: HTTP with server-sent events, and WebSockets, in the shapes of OpenAI's SDK."""
