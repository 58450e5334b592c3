"""What the servers, commands and Spark rooms of both packages need. Clients import nothing from here."""
