--[[
audit: append entries under rising numbers, and drop the oldest beyond what is kept.

  ARGV[1] how many are kept    ARGV[2] (msgpack) per entry its tenant's index and its body, flat
  returns nothing

The numbers are the ids of a stream, and are indexed per tenant. What is dropped leaves its index in the same step, in
bounded steps where much is too much at once: the next call goes on.
]]
local STEP = 1000
local keep, entries = tonumber(ARGV[1]), cmsgpack.unpack(ARGV[2])
local n, newest = tonumber(call('GET', P .. 'audit:last') or 0), call('XREVRANGE', P .. 'audit', '+', '-', 'COUNT', 1)[1]
if newest then n = math.max(n, tonumber(string.match(newest[1], '^%d+'))) end

for i = 1, #entries, 2 do
  n = n + 1
  call('XADD', P .. 'audit', string.format('%.0f-0', n), 'of', entries[i], 'body', entries[i + 1])
  call('ZADD', P .. entries[i], n, string.format('%.0f', n))
end
call('SET', P .. 'audit:last', string.format('%.0f', n))

local excess = math.min(call('XLEN', P .. 'audit') - keep, #entries + STEP)
if excess > 0 then
  for _, entry in ipairs(call('XRANGE', P .. 'audit', '-', '+', 'COUNT', excess)) do
    call('ZREM', P .. entry[2][2], string.match(entry[1], '^%d+'))
    call('XDEL', P .. 'audit', entry[1])
  end
end
