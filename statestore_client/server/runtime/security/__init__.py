"""The identity of a client: passwords, tokens, certificates, and the files with the access rules."""
