#!/usr/bin/env bash
ask='"performative":"request","sender":"([^"]*)","content":"(([^"\\]|\\.)*)"'
while read -r line && [[ $line != '{"event":"stop"'* ]]; do
  [[ $line =~ $ask ]] && act='"send","to":"'${BASH_REMATCH[1]}'","msg":{"performative":"inform","content":"'${BASH_REMATCH[2]}'!"}' || act='"noop"'
  printf '{"action":%s}\n' "$act"
done
