"""Parts of pages: plots, timelines, form fields, formatted values."""
