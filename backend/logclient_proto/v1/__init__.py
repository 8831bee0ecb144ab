"""Generated from proto/logclient_proto/v1 by tools/genproto.py; never edited."""
