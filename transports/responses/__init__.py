"""OpenAI's Responses, whichever transport they come by: what may be asked, how it runs, what is kept of it."""
