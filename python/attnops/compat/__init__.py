"""The interfaces of other projects over attnops' operators."""
