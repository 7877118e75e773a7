"""Turn records into text tables, Markdown, figures and HTML pages."""
