--[[
append: add entries to a log under rising numbers, and drop the oldest beyond what is kept.

  ARGV[1] the log    ARGV[2] how many entries are kept    ARGV[3] (msgpack) per entry its topic, quoted, and its body
  returns nothing

The log is a stream; the number of an entry is the first half of its id. {log}:of:{topic} has the numbers of a topic's
entries, {log}:last the last one given. What is dropped leaves its topic in the same step, in bounded steps where much
is too much at once: the next call goes on.
]]
local STEP = 1000
local log, keep, entries = P .. ARGV[1], tonumber(ARGV[2]), cmsgpack.unpack(ARGV[3])
local n, newest = tonumber(call('GET', log .. ':last') or 0), call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
if newest then n = math.max(n, tonumber(string.match(newest[1], '^%d+'))) end

for i = 1, #entries, 2 do
  n = n + 1
  local number = string.format('%.0f', n)
  call('XADD', log, number .. '-0', 'of', entries[i], 'body', entries[i + 1])
  if entries[i] ~= '' then call('ZADD', log .. ':of:' .. entries[i], n, number) end
end
call('SET', log .. ':last', string.format('%.0f', n))

local excess = math.min(call('XLEN', log) - keep, #entries + STEP)
if excess > 0 then
  for _, entry in ipairs(call('XRANGE', log, '-', '+', 'COUNT', excess)) do
    local number, topic = string.match(entry[1], '^%d+'), entry[2][2]
    if topic ~= '' then call('ZREM', log .. ':of:' .. topic, number) end
    call('XDEL', log, entry[1])
  end
end
