"""The Raft algorithm of a peer, pure: messages and time go in, what is to be sent, written and applied comes out."""
