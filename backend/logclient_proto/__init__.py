"""Generated from proto/logclient_proto by tools/genproto.py; never edited."""
