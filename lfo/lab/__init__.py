"""The laboratory: statistics, figures, tables, measurements of finished runs, many runs. The core never imports it."""
