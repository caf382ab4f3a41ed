"""What models' texts say: parsers by family, of tool calls and of reasoning (``core/parsing.py`` has their rules)."""
