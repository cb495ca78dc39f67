
# Names that the server knows, after what cyclopts offers. Where we have nothing to offer, such as the file of `dev`,
# bash completes names of files as it does elsewhere. `packhorse completion` fills in the two tables.
_packhorse_named() {
  _packhorse "$@"
  local before="${COMP_WORDS[*]:1:COMP_CWORD-1}" kind="" name quoted
  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"
  if [[ "$cur" == "=" ]]; then cur=""; elif [[ "$prev" == "=" ]]; then prev="${COMP_WORDS[COMP_CWORD-2]}"; fi
  case "$before" in
@BEHIND@
    "schedules put "*" "*) ;;
    "schedules put "*) kind=pipelines ;;
  esac
  case "$prev" in
@OPTIONS@
    "--queue") [[ "${COMP_WORDS[1]}" == "stats" ]] && kind=queues ;;
  esac
  [[ -z "$kind" || "$cur" == -* ]] && return
  while IFS= read -r name; do
    [[ "$name" == "$cur"* ]] && { printf -v quoted '%q' "$name"; COMPREPLY+=("$quoted"); }
  done < <("${COMP_WORDS[0]}" names "$kind" 2>/dev/null)
}

complete -o default -F _packhorse_named packhorse
