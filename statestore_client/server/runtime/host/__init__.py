"""The state store on sockets as a client of a foreign broker."""
