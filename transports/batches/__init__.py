"""Batches: files of requests that are answered beneath everything else, and whose answers outlive the process."""
