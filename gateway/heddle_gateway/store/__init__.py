"""History in SQL: tables, the write and read paths, the schema's migrations."""
