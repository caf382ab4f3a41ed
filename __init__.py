"""Stepwell serves language models, and studies how to schedule them, with one scheduler."""

__version__ = "0.1.0"
