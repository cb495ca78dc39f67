
  # Names that the server knows. This stands within the function that cyclopts writes: zsh calls what it loads from a
  # file only if that holds nothing but one.
  local kind=''
  local -a known
  case "${(j: :)words[2,CURRENT-1]}" in
@BEHIND@
    "schedules put "*" "*) ;;
    "schedules put "*) kind=pipelines ;;
  esac
  case "$words[CURRENT-1]" in
@OPTIONS@
    "--queue") [[ "$words[2]" == "stats" ]] && kind=queues ;;
  esac
  if [[ -n "$kind" && "$words[CURRENT]" != -* ]]; then
    known=("${(@f)$("$words[1]" names "$kind" 2>/dev/null)}")
    [[ -n "$known[1]" ]] && compadd -a known && return
  fi
