"""Turns measurements into what a person reads: HTML, figures, Markdown, CSV, JSON. Pure: text in, text out."""
