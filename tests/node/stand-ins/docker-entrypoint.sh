#!/bin/sh
# As in the image of envoy: arguments that begin with `-` are those of envoy.
case ${1:-} in -*) set -- envoy "$@" ;; esac
exec "$@"
