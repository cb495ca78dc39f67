--[[
take: count records of a lane that are due and put them off, so that nobody else takes them meanwhile.

  ARGV[1] now, or '' for the server's own time    ARGV[2] kind    ARGV[3] lane    ARGV[4] how many at most
  ARGV[5] seconds by which they are put off       ARGV[6..] the fields of a record
  returns records as id, fields, id, fields ..., the longest due first
]]
local now, kind, lane = clock(ARGV[1]), ARGV[2], ARGV[3]
local index, due = P .. 'due:' .. kind .. ':' .. lane, string.format('%.17g', now + tonumber(ARGV[5]))
local taken = {}
for _, id in ipairs(call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, ARGV[4])) do
  local key = record_key(kind, id)
  call('HINCRBY', key, 'stamp', 1)
  call('HINCRBY', key, 'attempts', 1)
  call('HSET', key, 'due_at', due)
  call('ZADD', index, due, id)
  taken[#taken + 1] = id
  taken[#taken + 1] = call('HMGET', key, unpack(ARGV, 6))
end
return taken
