#!/bin/sh
# Tells the customer.
set -eu
sleep 0.1
echo '{"log": {"level": "info", "message": "mail sent", "template": "shipped"}}'
