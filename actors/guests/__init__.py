"""The guests' door: agents from other processes, languages and machines join a running job."""
