--[[
ready: how many tasks of a queue and kind the next claim could take.

  ARGV[1] count no further    ARGV[2] (msgpack) pairs of queue and kind
  returns the numbers
]]
local most, counts = tonumber(ARGV[1]), {}
for i, pair in ipairs(cmsgpack.unpack(ARGV[2])) do
  local queue, kind = pair[1], pair[2]
  local count = call('ZCARD', P .. 'ready:' .. queue .. ':' .. kind)
  local base, group = P .. 'turns:' .. queue, '0\t' .. queue .. '\t' .. kind
  if call('EXISTS', base) == 1 then
    for _, share in ipairs(call('ZRANGE', base .. ':lanes:' .. group, 0, most - 1)) do
      if count >= most then break end
      count = count + call('ZCARD', base .. ':tasks:' .. group .. '\t' .. share)
    end
  end
  counts[i] = count
end
return counts
