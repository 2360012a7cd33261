"""Linear relaxations of integer programs: of a problem, and of a schedule."""
