"""Tests of whole processes, in folders by what they test. Helpers lie here: most of them serve several folders."""
