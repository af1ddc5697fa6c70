"""From what was measured to what a person reads: HTML, figures, Markdown, CSV, JSON. Pure: text in, text out."""
