"""Sockets: TCP, TLS, WebSocket and Unix, from accept to close."""
