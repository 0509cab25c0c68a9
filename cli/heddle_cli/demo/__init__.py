"""`heddle demo`: recorded agents under several policies, each on a fresh gateway and workers."""
