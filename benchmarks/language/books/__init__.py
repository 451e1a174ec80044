"""The corpus of the bundle `books`: public-domain books from repositories, cleaned and deduplicated."""
