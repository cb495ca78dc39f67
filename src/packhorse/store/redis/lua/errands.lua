--[[
errands: count errands that are due and put them off, so that nobody else takes them meanwhile.

  ARGV[1] now, or '' for the server's own time    ARGV[2] the sort    ARGV[3] how many at most
  ARGV[4] seconds by which they are put off
  returns errands as {id, value} flat, the longest due first; see errands.py for what a value is
]]
local now, index = clock(ARGV[1]), P .. 'errands:due:' .. ARGV[2]
local due = string.format('%.17g', now + tonumber(ARGV[4]))
local taken = {}
for _, id in ipairs(call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local attempts, sort, tenant, body = string.match(call('HGET', P .. 'errands', id) or '',
    '^(%d+)\t([^\t]*)\t([^\t]*)\t[^\t]*\t(.*)$')
  if attempts then
    local value = table.concat({string.format('%.0f', attempts + 1), sort, tenant, due, body}, '\t')
    call('HSET', P .. 'errands', id, value)
    call('ZADD', index, due, id)
    taken[#taken + 1] = id
    taken[#taken + 1] = value
  else
    call('ZREM', index, id)
  end
end
return taken
