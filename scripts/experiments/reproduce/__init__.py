"""The paper's figures, measured here: points, the ranks that measure them, pictures, the report."""
