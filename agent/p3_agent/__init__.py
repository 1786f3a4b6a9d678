"""The root daemon that keeps one interface's bands in order."""
