#!/bin/sh
# Fails twice before it succeeds.
case "$FLOWLINE_ATTEMPT" in
1)
    echo "the connection was reset" >&2 # repeated in the error
    exit 7                              # any exit code but 0 is a failed attempt; its code is exit_7
    ;;
2)
    # Says itself why it failed and when to come back.
    echo '{"retry": {"error": "the server is busy", "code": "busy", "after": "50ms"}}'
    ;;
*)
    echo "{\"result\": {\"attempt\": $FLOWLINE_ATTEMPT}}"
    ;;
esac
