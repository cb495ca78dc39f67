--[[
take_runs: put off runs that are to be carried on, so that nobody else takes them meanwhile.

  ARGV[1] now, or '' for the server's own time    ARGV[2] how many at most    ARGV[3] seconds by which they are put off
  ARGV[4..] the fields of a run
  returns the fields of each, the longest due first
]]
local now, seconds = clock(ARGV[1]), tonumber(ARGV[3])
local taken = {}
for _, key in ipairs(call('ZRANGEBYSCORE', P .. 'config:due', '-inf', now, 'LIMIT', 0, ARGV[2])) do
  if call('EXISTS', P .. key) == 1 then
    call('HSET', P .. key, 'due_at', string.format('%.6f', now + seconds))
    call('HINCRBY', P .. key, 'stamp', 1)
    call('ZADD', P .. 'config:due', now + seconds, key)
    taken[#taken + 1] = call('HMGET', P .. key, unpack(ARGV, 4))
  else
    call('ZREM', P .. 'config:due', key)
  end
end
return taken
