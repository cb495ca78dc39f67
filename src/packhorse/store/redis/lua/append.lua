--[[
append: add entries to a log under rising numbers, and drop the oldest: those of each topic beyond what is kept, and
those from before a time.

  ARGV[1] the log    ARGV[2] how many entries of a topic are kept    ARGV[3] the time
  ARGV[4] (msgpack) per entry {its topic, quoted; when it happened; its body}
  returns nothing

The log is a stream; the number of an entry is the first half of its id. {log}:of:{topic} has the numbers of a topic's
entries, {log}:last the last one given. What is dropped leaves its topic in the same step, in bounded steps where much
is too much at once: the next call goes on.
]]
local STEP = 100
local log, keep, since, entries = P .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), cmsgpack.unpack(ARGV[4])
local n, newest = tonumber(call('GET', log .. ':last') or 0), call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
if newest then n = math.max(n, tonumber(string.match(newest[1], '^%d+'))) end

local topics = {}
for _, entry in ipairs(entries) do
  n = n + 1
  local topic, number = log .. ':of:' .. entry[1], string.format('%.0f', n)
  call('XADD', log, number .. '-0', 'of', entry[1], 'at', entry[2], 'body', entry[3])
  call('ZADD', topic, n, number)
  topics[topic] = true
end
call('SET', log .. ':last', string.format('%.0f', n))

for topic in pairs(topics) do
  local excess = math.min(call('ZCARD', topic) - keep, #entries + STEP)
  if excess > 0 then
    for _, number in ipairs(call('ZRANGE', topic, 0, excess - 1)) do call('XDEL', log, number .. '-0') end
    call('ZREMRANGEBYRANK', topic, 0, excess - 1)
  end
end

for _, entry in ipairs(call('XRANGE', log, '-', '+', 'COUNT', #entries + STEP)) do
  if tonumber(entry[2][4]) < since then
    call('ZREM', log .. ':of:' .. entry[2][2], (string.match(entry[1], '^%d+')))
    call('XDEL', log, entry[1])
  end
end
