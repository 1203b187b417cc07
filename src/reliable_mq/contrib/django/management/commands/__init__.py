"""`manage.py reliable_mq`."""
