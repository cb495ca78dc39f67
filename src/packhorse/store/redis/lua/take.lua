--[[
take: count deliveries that are due and put them off, so that nobody else takes them meanwhile.

  ARGV[1] now, or '' for the server's own time    ARGV[2] how many at most    ARGV[3] seconds by which they are put off
  ARGV[4..] the fields of a delivery
  returns deliveries as {id, fields} flat, the longest due first
]]
local now, seconds = clock(ARGV[1]), tonumber(ARGV[3])
local taken = {}
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'outbox', '-inf', now, 'LIMIT', 0, ARGV[2])) do
  local key = P .. 'delivery:' .. id
  local endpoint = call('HGET', key, 'endpoint')
  if endpoint and call('SISMEMBER', P .. 'endpoints:open', endpoint) == 0 then  -- it has ended meanwhile
    call('DEL', key)
    call('ZREM', P .. 'outbox', id)
    call('ZREM', P .. 'endpoint:' .. endpoint .. ':deliveries', id)
  elseif endpoint then
    call('HINCRBY', key, 'attempts', 1)
    call('HSET', key, 'next_at', now + seconds)
    call('ZADD', P .. 'outbox', now + seconds, id)
    taken[#taken + 1] = id
    taken[#taken + 1] = call('HMGET', key, unpack(ARGV, 4))
  else
    call('ZREM', P .. 'outbox', id)
  end
end
return taken
