"""From a message to those who get it: subscriptions, the topic tree, shared subscriptions, retained messages."""
