#!/usr/bin/env bash
# An agent in bash: curl and jq, over HTTP, against one episode's session.
#
#   [actors.session.http]
#   [actors.agent]
#   agent = "milepost.actors.agent.connectors.command:CommandAgent"
#   options = { command = ["bash", "/path/to/agent.sh"] }
#
# It gets the prompt as JSON on standard input and the session's address in OPENAI_BASE_URL; it asks,
# gives one hint when the answer is wrong, asks again, and prints the result as its last line.
set -euo pipefail

prompt=$(cat)
label=$(jq -r '.label | if type == "string" then . else tojson end' <<<"$prompt")
messages=$(jq -c '.messages' <<<"$prompt")
tools=$(jq -c '.tools' <<<"$prompt")

# chat MESSAGES: the whole answer of the model; fails with the door's own words.
chat() {
  local body answer
  body=$(jq -nc --argjson messages "$1" --argjson tools "$tools" \
    '{model: "policy", messages: $messages} + (if $tools == [] then {} else {tools: $tools} end)')
  answer=$(curl -sS --max-time 600 -H 'content-type: application/json' -H 'authorization: Bearer unused' \
    --data-binary @- "$OPENAI_BASE_URL/chat/completions" <<<"$body")
  jq -e '.choices' >/dev/null <<<"$answer" || { echo "refused: $answer" >&2; return 1; }
  printf '%s' "$answer"
}

solved=0
for turn in 1 2; do
  # A bound of the episode is no failure of ours: what was reached so far counts.
  answer=$(chat "$messages") || { grep -q . <<<"$messages" && ((turn > 1)) && break; exit 1; }
  reply=$(jq -c '.choices[0].message' <<<"$answer")
  # Each reply goes back unchanged, then what is new.
  if [[ $(jq -r '.content // ""' <<<"$reply") == "$label" ]]; then
    solved=1
    break
  fi
  [[ $(jq -r '.choices[0].finish_reason' <<<"$answer") == length ]] && break
  calls=$(jq -c '[.tool_calls[]? | {role: "tool", tool_call_id: .id, content: "nothing"}]' <<<"$reply")
  hint='[{"role": "user", "content": "No. Try again."}]'
  messages=$(jq -c --argjson reply "$reply" --argjson calls "$calls" --argjson hint "$hint" \
    '. + [$reply] + (if $calls == [] then $hint else $calls end)' <<<"$messages")
done
jq -nc --argjson solved "$solved" --argjson turns "$turn" \
  '{reward: $solved, metrics: {solved: $solved, turns: $turns}}'
