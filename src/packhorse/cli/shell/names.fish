
# What the server knows, right behind these words.
function __fish_packhorse_behind
    set -l cmd (commandline -opc)
    set -e cmd[1]
    test "$cmd" = "$argv"
end
function __fish_packhorse_behind_put
    set -l cmd (commandline -opc)
    test (count $cmd) -eq 4; and test "$cmd[2..3]" = "schedules put"
end
