"""Small plugins, one per hook, as other distributions would bring them: public names only."""
