import sys, time, random, statistics
from epp.lab.fleet import EngineConfig
from epp.lab.fleet.faults import FaultPlan
from epp.lab.traffic import TrafficRequest, Segment
from epp.lab.simulation.simulation import Simulation
from epp.lab.simulation.policies import POLICIES, PolicyRouter
from epp.lab.simulation.picker import PickerRouter
from epp.building import InstalledPlugins
from epp.config import default_config
import structlog, logging
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
def traffic(n, rate, seed):
    r=random.Random(seed); t=0
    for i in range(n):
        t+=r.expovariate(rate)
        yield TrafficRequest(index=i, arrives_at=t, segments=(Segment(r.randrange(40),512),Segment(1000+i,256)), output_tokens=r.randint(50,200))
which=sys.argv[1]; n=int(sys.argv[2])
engine=EngineConfig(max_num_seqs=64,num_blocks=1200)
installed=InstalledPlugins.load()
def make(servers, loop):
    if which in POLICIES: return PolicyRouter(len(servers), POLICIES[which](len(servers), random.Random(1)))
    return PickerRouter(default_config(), servers, loop, installed=installed, seed=1)
def go():
    return Simulation(engines=[engine]*8, traffic=list(traffic(n,10,1)), make_router=make, faults=FaultPlan()).run()
if len(sys.argv)>3:
    import cProfile,pstats
    p=cProfile.Profile(); p.enable(); o=go(); p.disable(); pstats.Stats(p).sort_stats('tottime').print_stats(35)
else: o=go()
print(o.records[:2])
ok=[r for r in o.records if r.succeeded]
tt=sorted(r.ttft_seconds for r in ok)
print(which, len(ok), len(o.records), 'p50 %.3f p90 %.3f'%(tt[len(tt)//2], tt[int(len(tt)*.9)]), 'hit %.3f'%(sum(r.cached_tokens for r in ok)/sum(r.prompt_tokens for r in ok)), 'x%.0f'%(o.virtual_seconds/o.real_seconds), o.worker_requests)
