--[[
renew: move the deadline of leases, for those who still hold them.

  ARGV[1] now, or '' for the server's own time    ARGV[2] seconds from now    ARGV[3] (msgpack) triples job, entry, token, flat
  returns per lease 'lost', 'stopping' or ''
]]
local until_ = clock(ARGV[1]) + tonumber(ARGV[2])
local leases, standing = cmsgpack.unpack(ARGV[3]), {}
for i = 1, #leases, 3 do
  local job, entry, token = leases[i], leases[i + 1], leases[i + 2]
  local how = ''
  if not is_held('holders', entry, token) then
    how = 'lost'
  else
    call('ZADD', P .. 'leases', 'XX', until_, entry)
    if (call('HGET', P .. 'job:' .. job, 'stopping') or '') ~= '' then how = 'stopping' end
  end
  standing[#standing + 1] = how
end
return standing
