"""Who a client is: passwords, tokens, certificates, and the files with the access rules."""
