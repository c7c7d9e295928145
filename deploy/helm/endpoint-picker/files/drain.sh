#!/bin/bash
# drain.sh ADMIN_PORT ACCEPT_SECONDS LONGEST_SECONDS
#
# Drains the Envoy of this container, and ends when its last request has: run it before SIGTERM, at
# which Envoy would cut what is in flight. From now on responses tell their clients to come no more on
# this connection. For ACCEPT_SECONDS, Envoy's --drain-time-s, new connections are still let in:
# who sends them learns only by and by that this Envoy is going away. Requests get LONGEST_SECONDS
# in all. Status 1 if Envoy cannot be told, 2 if requests were left.
#
# Plain bash, as Envoy's image has no HTTP client.
set -u
port=$1 accept=$2 longest=$3

admin() {
    exec 3<>"/dev/tcp/127.0.0.1/$port" || return
    printf '%s %s HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\n\r\n' "$1" "$2" >&3
    timeout 5 cat <&3
}

[[ $(admin POST '/drain_listeners?graceful') == 'HTTP/1.1 200'* ]] || exit 1
while ((SECONDS < longest)); do
    # SECONDS is cut to whole ones: only above the limit has all of it passed.
    if ((SECONDS > accept)); then
        active=$(admin GET '/stats?filter=^http\.gateway\.downstream_rq_active$') || exit 1
        [[ $active == *'downstream_rq_active: 0'* ]] && exit 0
    fi
    sleep 0.2
done
exit 2
